-- What both scripts of redislimit begin with: the time.
--
-- ARGV[1] is the time in Unix nanoseconds, or empty for the server's time.
-- ARGV[2] is the generation of the callers' limits, or empty for plain values.
--
-- An instant needs 61 bits and a number has 53, so every instant and duration is
-- a pair of seconds and nanoseconds.
local billion = 1000000000
local format, match = string.format, string.match
local given, plain, generation = ARGV[1] ~= '', ARGV[2] == '', tonumber(ARGV[2], 10)
local nows, nown
if given then
  nows, nown = tonumber(string.sub(ARGV[1], 1, -10), 10) or 0, tonumber(string.sub(ARGV[1], -9), 10)
else
  local t = redis.call('TIME')
  nows, nown = tonumber(t[1], 10), tonumber(t[2], 10) * 1000
end
local wrote = false -- something was written
