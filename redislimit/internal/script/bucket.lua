-- Instants, and buckets as the server has them, for both scripts.
--
-- A bucket's value is "TAT", "TAT MARK" or "TAT MARK HOLD". TAT is the instant
-- at which the bucket is full, and HOLD is the end of its hold, both in Unix
-- nanoseconds. MARK is the newest generation that used the bucket, or the
-- instant at which it was last found full, in Unix microseconds.

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

local function less(as, an, bs, bn)
  return as < bs or as == bs and an < bn
end

local function least(as, an, bs, bn)
  if less(as, an, bs, bn) then return as, an end
  return bs, bn
end

-- whole returns the largest multiple of T that is at most x: it takes T times
-- the powers of 2 away from x, the largest first.
local function whole(xs, xn, ts, tn)
  local powers = {}
  local ps, pn = ts, tn
  while not less(xs, xn, ps, pn) do
    powers[#powers + 1] = {ps, pn}
    ps, pn = add(ps, pn, ps, pn)
  end
  local rs, rn = xs, xn
  for i = #powers, 1, -1 do
    local p = powers[i]
    if not less(rs, rn, p[1], p[2]) then rs, rn = sub(rs, rn, p[1], p[2]) end
  end
  return sub(xs, xn, rs, rn)
end

-- number returns digits as a pair, or nil if they are no int64.
local function number(v)
  local n = #v
  if n > 19 or n == 19 and v > '9223372036854775807' then return nil end
  if n <= 9 then return 0, tonumber(v, 10) end
  return tonumber(string.sub(v, 1, n - 9), 10), tonumber(string.sub(v, n - 8), 10)
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

-- failed returns an error of the server as the reply. It begins with STINT NONE if
-- nothing was written, and with STINT SOME otherwise.
local function failed(why)
  return redis.error_reply((wrote and 'STINT SOME ' or 'STINT NONE ') .. why)
end

-- writeAll writes buckets in order. If the server refuses a command, it returns the
-- error.
local function writeAll(buckets)
  for i = 1, #buckets do
    local failure, did = write(buckets[i])
    if failure then return failed(failure) end
    wrote = wrote or did
  end
end
