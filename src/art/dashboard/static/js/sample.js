// One streamed answer of a model, from the server's own chat completions.

import { ask, readEvents } from "./api.js";

const WHERE = new URL("v1/chat/completions", document.baseURI);

/**
 * Asks `model` (`project/name@step`) and calls `each(answer)` as it grows. `answer` is `{text, reasoning, calls, tokens, seconds,
 * first, finish}`: seconds since it was asked, seconds to its first token, and why it ended ("" while it goes on).
 */
export async function sample({ model, messages, temperature, maxTokens, seed, signal }, each) {
  const began = performance.now();
  let answer = { text: "", reasoning: "", calls: [], tokens: 0, seconds: 0, first: null, finish: "" };
  const body = {
    model, messages, temperature, max_tokens: maxTokens, seed, stream: true, stream_options: { include_usage: true },
  };
  const headers = { "X-ART-Purpose": "evaluate" }; // what is tried out is never trained
  const response = await ask(WHERE, { method: "POST", body, signal, headers });
  await readEvents(response, ({ data }) => {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new Error(chunk.error.message);
    answer = grown(answer, chunk, (performance.now() - began) / 1000);
    each(answer);
  });
  return answer;
}

function grown(old, chunk, seconds) {
  const [choice] = chunk.choices ?? [];
  const delta = choice?.delta ?? {};
  const text = old.text + (delta.content ?? "");
  const reasoning = old.reasoning + (delta.reasoning_content ?? delta.reasoning ?? "");
  const calls = [...old.calls];
  for (const call of delta.tool_calls ?? []) {
    const before = calls[call.index] ?? { name: "", arguments: "" };
    calls[call.index] = {
      name: before.name + (call.function?.name ?? ""),
      arguments: before.arguments + (call.function?.arguments ?? ""),
    };
  }
  const came = text !== old.text || reasoning !== old.reasoning || delta.tool_calls;
  return {
    text, reasoning, calls, seconds,
    tokens: chunk.usage?.completion_tokens ?? old.tokens + (came ? 1 : 0),
    first: old.first ?? (came ? seconds : null),
    finish: choice?.finish_reason ?? old.finish,
  };
}
