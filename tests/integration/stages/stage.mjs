// `examples/stage_nats.py` in Node.js, by the text protocol of NATS alone: it shows what a stage needs, which is a
// socket and JSON. A stage of your own is shorter with a client of NATS.
import { createConnection } from "node:net";
import { hostname } from "node:os";

const NAME = "size-limit", PROMPT_TOKENS = 1000, OUTPUT_TOKENS = 8;
const server = new URL(process.env.POINTSMAN_NATS_URL ?? "nats://127.0.0.1:4222");

function answered(journey) {
  const tokens = journey.request.prompt_tokens;
  if (tokens > PROMPT_TOKENS) {
    return {
      kind: "rejection", request_id: journey.request_id, stage: NAME,
      status: 400, type: "invalid_request_error", code: "prompt_too_long",
      message: `The prompt has about ${tokens} tokens; send ${PROMPT_TOKENS} at most.`,
    };
  }
  journey.body.push({ field: "max_tokens", value: OUTPUT_TOKENS });
  journey.trail.push({ stage: NAME, instance: hostname(), note: `at most ${OUTPUT_TOKENS} tokens` });
  return journey;
}

const socket = createConnection(Number(server.port), server.hostname);
const login = { verbose: false, user: server.username || undefined, pass: server.password || undefined };
socket.write(`CONNECT ${JSON.stringify(login)}\r\nSUB pm.rpc.request.${NAME}.v1 ${NAME} 1\r\n`);

let read = Buffer.alloc(0);
socket.on("data", (data) => {
  read = Buffer.concat([read, data]);
  for (let end; (end = read.indexOf("\r\n")) >= 0; ) {
    const [operation, , , ...rest] = read.toString("utf8", 0, end).split(" ");
    const size = operation === "MSG" ? Number(rest.at(-1)) + 2 : 0;
    if (read.length < end + 2 + size) return;
    if (operation === "PING") socket.write("PONG\r\n");
    if (operation === "MSG") {
      const answer = JSON.stringify(answered(JSON.parse(read.toString("utf8", end + 2, end + size))));
      socket.write(`PUB ${rest[0]} ${Buffer.byteLength(answer)}\r\n${answer}\r\n`);
    }
    read = read.subarray(end + 2 + size);
  }
});
