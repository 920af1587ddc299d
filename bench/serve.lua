-- The arithmetic of CL.THROTTLE: KEYS[1], max_burst, count, period and perhaps a quantity.
local burst, interval = ARGV[1] + 1, ARGV[3] * 1e6 / ARGV[2]
local tolerance, cost = burst * interval, (ARGV[4] or 1) * interval
local now = redis.call('TIME')
now = now[1] * 1e6 + now[2]
local full = math.max(now, tonumber(redis.call('GET', KEYS[1]) or 0))
local early = full + cost - now - tolerance
local limited, retry = 0, -1
if early > 0 then
  limited, retry = 1, math.ceil(early / 1e6)
else
  full = full + cost
  redis.call('SET', KEYS[1], string.format('%.0f', full), 'PX', math.max(1, math.ceil((full - now) / 1e3)))
end
return {limited, burst, math.floor((tolerance - (full - now)) / interval), retry, math.ceil((full - now) / 1e6)}
