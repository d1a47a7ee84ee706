// The message classes of Kafka's Java client behind a pipe: one JSON command per line in, one JSON answer per line out.
// A message is decoded and encoded again by what Kafka generates from its schemas, and shown as Kafka shows it.

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.Map;
import org.apache.kafka.common.message.ApiMessageType;
import org.apache.kafka.common.message.RequestHeaderData;
import org.apache.kafka.common.message.ResponseHeaderData;
import org.apache.kafka.common.protocol.ApiMessage;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.ObjectSerializationCache;

public class MessageCodec {
    static final ObjectMapper JSON = new ObjectMapper();

    public static void main(String[] arguments) throws Exception {
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        System.setOut(System.err);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line; (line = in.readLine()) != null; ) {
            Map<String, Object> answer = new LinkedHashMap<>();
            try {
                answer.put("result", run(JSON.readTree(line)));
            } catch (Throwable failure) {
                answer.put("error", failure.getClass().getSimpleName());
                answer.put("message", failure.getMessage());
            }
            out.println(JSON.writeValueAsString(answer));
        }
    }

    static Object run(JsonNode c) throws Exception {
        return switch (c.get("command").asText()) {
            case "versions" -> versions();
            case "request" -> recoded(c, true);
            case "response" -> recoded(c, false);
            default -> throw new IllegalArgumentException("unknown command " + c.get("command"));
        };
    }

    // Each API's lowest and highest version that these classes can read and write.
    static Object versions() {
        Map<String, Object> found = new LinkedHashMap<>();
        for (ApiMessageType type : ApiMessageType.values())
            found.put(String.valueOf(type.apiKey()), Arrays.asList(type.lowestSupportedVersion(), newest(type)));
        return found;
    }

    static short newest(ApiMessageType type) {
        return type.highestSupportedVersion(true);
    }

    static Object recoded(JsonNode c, boolean isRequest) throws Exception {
        ApiMessageType type = ApiMessageType.fromApiKey((short) c.get("api_key").asInt());
        short version = (short) c.get("version").asInt();
        if (version < type.lowestSupportedVersion() || version > newest(type))
            throw new IllegalArgumentException(type + " has no version " + version);
        ByteBuffer bytes = ByteBuffer.wrap(Base64.getDecoder().decode(c.get("bytes").asText()));
        ByteBufferAccessor reader = new ByteBufferAccessor(bytes);
        short headerVersion = isRequest ? type.requestHeaderVersion(version) : type.responseHeaderVersion(version);
        ApiMessage header = isRequest ? new RequestHeaderData() : new ResponseHeaderData();
        ApiMessage body = isRequest ? type.newRequest() : type.newResponse();
        header.read(reader, headerVersion);
        body.read(reader, version);
        if (bytes.hasRemaining()) throw new IllegalStateException(bytes.remaining() + " bytes follow the message");

        ObjectSerializationCache cache = new ObjectSerializationCache();
        ByteBuffer encoded = ByteBuffer.allocate(header.size(cache, headerVersion) + body.size(cache, version));
        ByteBufferAccessor writer = new ByteBufferAccessor(encoded);
        header.write(writer, cache, headerVersion);
        body.write(writer, cache, version);
        if (encoded.hasRemaining()) throw new IllegalStateException("the message is shorter than its size");
        Map<String, Object> result = new LinkedHashMap<>();
        result.put("bytes", encoded.array());
        result.put("header", shown(header, headerVersion));
        result.put("body", shown(body, version));
        return result;
    }

    static JsonNode shown(ApiMessage message, short version) throws Exception {
        Class<?> converter = Class.forName(message.getClass().getName() + "JsonConverter");
        return (JsonNode) converter.getMethod("write", message.getClass(), short.class).invoke(null, message, version);
    }
}
