// Vercel's AI SDK: live requests, streamed too.

const { createOpenAICompatible } = require("@ai-sdk/openai-compatible");
const { generateText, streamText } = require("ai");

async function main() {
  const { OPENAI_BASE_URL: baseURL, OPENAI_API_KEY: apiKey, MODEL } = process.env;
  const model = createOpenAICompatible({ name: "batchyard", baseURL, apiKey })(MODEL);
  const answers = { live: [], stream: [] };
  for (const prompt of JSON.parse(process.argv[2])) {
    answers.live.push((await generateText({ model, prompt })).text);
    answers.stream.push(await streamText({ model, prompt }).text);
  }
  console.log(JSON.stringify(answers));
}

main();
