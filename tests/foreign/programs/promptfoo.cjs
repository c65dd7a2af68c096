// promptfoo: an evaluation of a file, whose tests want the prompts back.

const { execFileSync } = require("node:child_process");
const { readFileSync, writeFileSync } = require("node:fs");

const { OPENAI_BASE_URL: apiBaseUrl, OPENAI_API_KEY: apiKey, MODEL } = process.env;
const prompts = JSON.parse(process.argv[2]);
const config = {
  providers: [{ id: `openai:chat:${MODEL}`, config: { apiBaseUrl, apiKey } }],
  prompts: ["{{question}}"],
  tests: prompts.map((question) => ({ vars: { question }, assert: [{ type: "equals", value: "{{question}}" }] })),
};
writeFileSync("promptfooconfig.json", JSON.stringify(config));
const command = ["eval", "--config", "promptfooconfig.json", "--output", "results.json", "--no-cache", "--no-table"];
execFileSync("promptfoo", command, { stdio: ["ignore", "ignore", "inherit"] });
const { results } = JSON.parse(readFileSync("results.json")).results;
results.sort((one, other) => one.testIdx - other.testIdx);
console.log(JSON.stringify({ live: results.map(({ response }) => response.output) }));
