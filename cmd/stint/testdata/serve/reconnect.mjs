// Throttles before and after a restart of the server, with one client.
import Redis from "ioredis";
import { once } from "node:events";

const stint = new Redis(process.env.STINT);
stint.on("error", () => {}); // it connects again
const left = async () => (await stint.call("CL.THROTTLE", "user:1", 99, 100, 86400))[2];
console.log(await left());
await once(process.stdin, "data");
console.log(await left());
process.exit();
