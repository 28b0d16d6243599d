// Calls of Vercel's AI SDK (`ai`, `@ai-sdk/openai`, `@ai-sdk/openai-compatible`, `@ai-sdk/anthropic`).
//
//     node calls.mjs URL
//
// prints a line of JSON for each call: its name, and why it failed.

import assert from "node:assert/strict";
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { embed, embedMany, generateText, Output, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const MODEL = "llama-3.1-8b";
const HELLO = "Say something.";
const PIXEL =
  "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";
const door = process.argv[2];
const openai = createOpenAI({ baseURL: `${door}/v1`, apiKey: "unused" });
const compatible = createOpenAICompatible({ name: "gateway", baseURL: `${door}/v1`, apiKey: "unused", includeUsage: true });
const anthropic = createAnthropic({ baseURL: `${door}/v1`, apiKey: "unused" });
const weather = z.object({ city: z.string(), sky: z.enum(["clear", "cloudy"]) });

const CALLS = [];
function add(title, run) {
  CALLS.push([title, run]);
}

function say() {
  return tool({ description: "Says it.", inputSchema: z.object({ text: z.string() }), execute: async () => "said" });
}

async function collected(stream) {
  const pieces = [];
  for await (const piece of stream) pieces.push(piece);
  assert.ok(pieces.length > 1, `${pieces.length} pieces`);
  return pieces.join("");
}

// The model calls the tool, its result goes back, and the model answers.
async function converses(model) {
  const first = await generateText({ model, prompt: HELLO, tools: { say: say() }, toolChoice: "required" });
  assert.equal(first.toolCalls[0].toolName, "say");
  assert.equal(typeof first.toolCalls[0].input.text, "string");
  const messages = [{ role: "user", content: HELLO }, ...first.response.messages];
  assert.equal(messages.at(-1).role, "tool");
  const { text } = await generateText({ model, messages, tools: { say: say() } });
  assert.ok(text.trim());
}

add("generateText(openai.chat())", async () => {
  const { text, usage, response } = await generateText({ model: openai.chat(MODEL), prompt: HELLO, maxOutputTokens: 8 });
  assert.ok(text.trim());
  assert.equal(usage.outputTokens, 8);
  assert.equal(response.modelId, MODEL);
});

add("streamText(openai.chat())", async () => {
  const result = streamText({ model: openai.chat(MODEL), prompt: HELLO, maxOutputTokens: 8 });
  assert.equal((await collected(result.textStream)).trim().split(/\s+/).length, 8);
  assert.equal((await result.usage).outputTokens, 8);
});

add("generateText(openai.chat(), tools) with a tool's result", () => converses(openai.chat(MODEL)));

add("streamText(openai.chat(), tools)", async () => {
  const model = openai.chat(MODEL);
  const result = streamText({ model, prompt: HELLO, tools: { say: say() }, toolChoice: "required", stopWhen: stepCountIs(1) });
  const calls = await result.toolCalls;
  assert.equal(calls[0].toolName, "say");
});

add("generateText(openai.chat(), output: Output.object())", async () => {
  const { output } = await generateText({ model: openai.chat(MODEL), prompt: HELLO, output: Output.object({ schema: weather }) });
  weather.parse(output);
});

add("generateText(openai.chat()) with an image", async () => {
  const content = [{ type: "text", text: HELLO }, { type: "image", image: PIXEL, mediaType: "image/png" }];
  const { text } = await generateText({ model: openai.chat(MODEL), messages: [{ role: "user", content }] });
  assert.ok(text.trim());
});

add("generateText(openai.completion())", async () => {
  const { text } = await generateText({ model: openai.completion(MODEL), prompt: HELLO, maxOutputTokens: 8 });
  assert.ok(text.trim());
});

add("generateText(openai.responses())", async () => {
  const { text, usage } = await generateText({ model: openai.responses(MODEL), prompt: HELLO, maxOutputTokens: 16 });
  assert.ok(text.trim());
  assert.ok(usage.outputTokens > 0);
});

add("streamText(openai.responses())", async () => {
  const result = streamText({ model: openai.responses(MODEL), prompt: HELLO, maxOutputTokens: 16 });
  assert.ok((await collected(result.textStream)).trim());
});

add("embed(openai.embedding())", async () => {
  const { embedding } = await embed({ model: openai.embedding(MODEL), value: HELLO });
  assert.ok(embedding.length > 1);
});

add("embedMany(openai.embedding())", async () => {
  const { embeddings } = await embedMany({ model: openai.embedding(MODEL), values: ["one", "two"] });
  assert.equal(embeddings.length, 2);
});

add("generateText(createOpenAICompatible())", async () => {
  const { text, usage } = await generateText({ model: compatible(MODEL), prompt: HELLO, maxOutputTokens: 8 });
  assert.ok(text.trim());
  assert.equal(usage.outputTokens, 8);
});

add("streamText(createOpenAICompatible())", async () => {
  const result = streamText({ model: compatible(MODEL), prompt: HELLO, maxOutputTokens: 8 });
  assert.ok((await collected(result.textStream)).trim());
  assert.equal((await result.usage).outputTokens, 8);
});

add("generateText(createOpenAICompatible(), tools) with a tool's result", () => converses(compatible(MODEL)));

add("generateText(anthropic())", async () => {
  const { text, usage } = await generateText({ model: anthropic(MODEL), prompt: HELLO, maxOutputTokens: 8 });
  assert.ok(text.trim());
  assert.equal(usage.outputTokens, 8);
});

add("streamText(anthropic())", async () => {
  const result = streamText({ model: anthropic(MODEL), prompt: HELLO, maxOutputTokens: 8 });
  assert.ok((await collected(result.textStream)).trim());
});

add("generateText(anthropic(), tools) with a tool's result", () => converses(anthropic(MODEL)));

add("generateText() of an unknown model", async () => {
  await assert.rejects(generateText({ model: openai.chat("no-such-model"), prompt: HELLO, maxRetries: 0 }), /no-such-model/);
});

for (const [title, run] of CALLS) {
  let problem = "";
  try {
    await run();
  } catch (error) {
    problem = `${error.stack ?? error}`;
  }
  process.stdout.write(`${JSON.stringify({ call: title, problem })}\n`);
}
