"""One Spark session that reads ranges of a topic and says how long each took: a process of its own per measurement.

`python -m benchmarks.pipeline_reader '{"master": "local[2]", …}'` prints a line of JSON per read.
"""

from __future__ import annotations

import json
import sys
import time

from benchmarks.cpu import resident_peak_mb
from gateway.config import Settings
from gateway.pipeline import fix_cut, read_cut, spark_session

HEAP = "1g"


def main() -> None:
    task = json.loads(sys.argv[1])
    config = {
        "spark.ui.enabled": "false",
        "spark.driver.memory": HEAP,
        "spark.log.level": "ERROR",
        "spark.local.dir": task["directory"],
    }
    spark = spark_session("bench", master=task["master"], config=config, settings=Settings(database_url=task["url"]))
    jvm = spark.sparkContext._jvm  # noqa: SLF001 - the only way to its process id
    assert jvm is not None
    jvm_pid = jvm.java.lang.ProcessHandle.current().pid()
    for rows, way in [(task["warm_up"], "jdbc"), (task["warm_up"], "source"), *task["reads"]]:
        end = {task["topic"]: dict.fromkeys(range(task["partitions"]), rows // task["partitions"])}
        started = time.perf_counter()
        cut = fix_cut(task["url"], task["topic"], end=end)
        if way == "jdbc":
            frame = read_cut(spark, cut)
        else:
            ending = json.dumps({task["topic"]: {str(one.partition): one.end for one in cut.ranges}})
            frame = (
                spark.read.format("tablewire").option("topics", task["topic"]).option("endingOffsets", ending).load()
            )
        # Every column of every row is made, and thrown away.
        frame.write.format("noop").mode("overwrite").save()
        seconds = time.perf_counter() - started
        line = {"rows": cut.size, "way": way, "seconds": seconds, "jvm_peak_mb": resident_peak_mb(jvm_pid)}
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()
    spark.stop()


if __name__ == "__main__":
    main()
