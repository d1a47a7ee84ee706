"""A gateway of which nothing was compiled says so once, and serves all the same."""

from __future__ import annotations

from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition

from tests.support.gateway_process import GatewayProcess

MODULES = ("gateway.protocol._transcoder", "gateway.broker._usual_appends", "gateway.server._usual_requests")
NOT_BUILT = f"import sys; sys.modules.update(dict.fromkeys({MODULES}))"


def test_python_does_what_could_not_be_compiled(database_url: str, tmp_path: Path) -> None:
    sent = [(b"key %d" % index, bytes([index]) * 1000, [("header", b"%d" % index)]) for index in range(200)]
    with GatewayProcess(database_url, directory=tmp_path, prelude=NOT_BUILT) as gateway:
        assert gateway.log_text().count("the compiled transcoder was not built") == 1
        for topic, codec in (("plain", "none"), ("packed", "zstd")):
            producer = Producer({"bootstrap.servers": gateway.bootstrap, "compression.type": codec, "linger.ms": 50})
            refused = []
            for key, value, headers in sent:
                producer.produce(
                    topic,
                    key=key,
                    value=value,
                    headers=headers,
                    partition=0,
                    on_delivery=lambda error, _, refused=refused: error and refused.append(error),
                )
            assert producer.flush(60) == 0
            assert refused == []
        gateway.terminate()
        gateway.restart()  # what is read now comes from the rows
        for topic in ("plain", "packed"):
            consumer = Consumer({"bootstrap.servers": gateway.bootstrap, "group.id": "g", "enable.auto.commit": False})
            consumer.assign([TopicPartition(topic, 0, 0)])
            found = consumer.consume(len(sent), timeout=60)
            consumer.close()
            assert [(message.key(), message.value(), message.headers()) for message in found] == sent
