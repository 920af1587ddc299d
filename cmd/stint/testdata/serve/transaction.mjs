import assert from "node:assert";
import Redis from "ioredis";

const stint = new Redis(process.env.STINT);

const replies = await stint.multi()
  .call("CL.THROTTLE", "user:1", 0, 1, 86400)
  .call("CL.THROTTLE", "user:1", 0, "x", 86400)
  .call("CL.THROTTLE", "user:1", 0, 1, 86400)
  .exec();
assert.equal(replies[0][1][0], 0);
assert.match(replies[1][0].message, /Couldn't parse as integer/);
assert.equal(replies[2][1][0], 1);
await stint.quit();
