import Redis from "ioredis";

const stint = new Redis(process.env.STINT ?? "/run/stint/resp.sock");

const [limited, limit, left, retry] = await stint.call("CL.THROTTLE", "user:1", 99, 100, 86400);
console.log(limited ? `retry in ${retry}s` : `${left} of ${limit} left`);
await stint.quit();
