// An agent on npm's `openai`: its own tool runner, streaming with --stream.
import OpenAI from 'openai';

const tool = (name, description, types, run) => ({
  type: 'function',
  function: {
    name,
    description,
    parameters: {
      type: 'object',
      properties: Object.fromEntries(Object.entries(types).map(([key, type]) => [key, { type }])),
      required: Object.keys(types),
    },
    parse: JSON.parse,
    function: run,
  },
});
const tools = [
  tool('get_weather', 'The temperature in a city.', { city: 'string' }, ({ city }) =>
    `${city}: ${{ Oslo: 21, Rome: 14 }[city]} degrees`),
  tool('subtract', 'a minus b.', { a: 'integer', b: 'integer' }, ({ a, b }) => `the difference is ${a - b}`),
];
const messages = [
  { role: 'system', content: 'You look things up before you answer.' },
  { role: 'user', content: 'How much warmer is it in Oslo than in Rome?' },
];

const client = new OpenAI();
const stream = process.argv.includes('--stream');
const runner = client.chat.completions.runTools({ model: 'gpt-4o', messages, tools, stream });
let deltas = 0;
if (stream) runner.on('content', () => { deltas += 1; });
const answer = await runner.finalContent();
if (stream && deltas < 10) throw new Error(`${deltas} deltas`);
console.log(JSON.stringify({ answer }));
