-- What both scripts of redislimit begin with: instants, and buckets as the
-- server has them.
--
-- A bucket's value is "TAT", "TAT MARK" or "TAT MARK HOLD". TAT is the instant
-- at which the bucket is full, and HOLD is the end of its hold, both in Unix
-- nanoseconds. MARK is the newest generation that used the bucket, or the
-- instant at which it was last found full, in Unix microseconds.
--
-- ARGV[1] is the time in Unix nanoseconds, or empty for the server's time.
-- ARGV[2] is the generation of the callers' limits, or empty for plain values.
--
-- An instant needs 61 bits and a number has 53, so every instant and duration is
-- a pair of seconds and nanoseconds.
local billion = 1000000000
local format, match = string.format, string.match

local function join(s, n)
  if s == 0 then return format('%d', n) end
  return format('%d%09d', s, n)
end

local function add(as, an, bs, bn)
  local s, n = as + bs, an + bn
  if n >= billion then return s + 1, n - billion end
  return s, n
end

local function sub(as, an, bs, bn)
  local s, n = as - bs, an - bn
  if n < 0 then return s - 1, n + billion end
  return s, n
end

-- number returns digits as a pair, or nil if they are no int64.
local function number(v)
  local n = #v
  if n > 19 or n == 19 and v > '9223372036854775807' then return nil end
  if n <= 9 then return 0, tonumber(v, 10) end
  return tonumber(string.sub(v, 1, n - 9), 10), tonumber(string.sub(v, n - 8), 10)
end

local given, plain, generation = ARGV[1] ~= '', ARGV[2] == '', tonumber(ARGV[2], 10)
local nows, nown
if given then
  nows, nown = number(ARGV[1])
else
  local t = redis.call('TIME')
  nows, nown = tonumber(t[1], 10), tonumber(t[2], 10) * 1000
end
local micros = format('%d', nows * 1000000 + (nown - nown % 1000) / 1000)

-- read returns a bucket. If the key is no string, it returns nil and T, and if
-- its value is not a bucket's, nil and V. If GET fails in another way, it returns
-- nil and the server's error. The scripts set ns, nn, ws and wn.
local function read(key)
  local v = redis.pcall('GET', key)
  local ts, tn, mark, hs, hn = 0, 0, '0', 0, 0
  if type(v) == 'table' then return nil, match(v.err, '^WRONGTYPE') and 'T' or v.err end
  if v then
    local tat, m, hold
    if plain then
      tat = match(v, '^%d+$')
    else
      tat, m = match(v, '^(%d+) (%d+)$')
      if not tat then tat, m, hold = match(v, '^(%d+) (%d+) (%d+)$') end
      if not tat then tat = match(v, '^%d+$') end
    end
    if tat then ts, tn = number(tat) end
    if hold then hs, hn = number(hold) end
    if not tat or not ts or not hs or m and #m > 16 then return nil, 'V' end
    mark = m or mark
  end
  return {key = key, existed = v, mark = mark, ts = ts, tn = tn, hs = hs, hn = hn, ns = 0, nn = 0, ws = 0, wn = 0}
end

-- write stores a bucket, or deletes it if it is full and not held. It returns
-- the server's error or nil, and whether it wrote anything.
local function write(b)
  local es, en, result = b.ts, b.tn, nil
  local held = nows < b.hs or nows == b.hs and nown < b.hn
  if held and (es < b.hs or es == b.hs and en < b.hn) then es, en = b.hs, b.hn end
  if nows < es or nows == es and nown < en then
    local v = join(b.ts, b.tn)
    if not plain then v = v .. ' ' .. b.mark end
    if held then v = v .. ' ' .. join(b.hs, b.hn) end
    if given then
      result = redis.pcall('SET', b.key, v)
    else
      es, en = sub(es, en, nows, nown)
      result = redis.pcall('SET', b.key, v, 'PX', format('%d', es * 1000 + math.ceil(en / 1000000) + 1))
    end
  elseif b.existed then
    result = redis.pcall('DEL', b.key)
  end
  if type(result) == 'table' and result.err then return result.err, false end
  return nil, result ~= nil
end

-- writeAll writes buckets in order. If the server refuses a command, it returns an
-- error that begins with STINT NONE if nothing was written, and with STINT SOME
-- otherwise.
local function writeAll(buckets)
  local wrote = false
  for i = 1, #buckets do
    local failure, did = write(buckets[i])
    if failure then return redis.error_reply((wrote and 'STINT SOME ' or 'STINT NONE ') .. failure) end
    wrote = wrote or did
  end
end
