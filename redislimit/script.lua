-- The decisions of redislimit. Go multiplies; this script adds and compares.
--
-- KEYS has one bucket each. A value is "TAT", or "TAT MARK", or "TAT MARK
-- HOLD": the instant at which the bucket is full and the end of its hold, in
-- Unix nanoseconds, and in microseconds the generation that it was seen by last.
--
-- ARGV[1] is the time in Unix nanoseconds, or empty for the server's time.
-- ARGV[2] is the operation: spend, check, refund, undo, reset, hold or charge.
-- A charge takes what the bucket has, up to its need, and admits nothing.
-- ARGV[3] is the generation of the caller's limits, or empty for plain values.
-- Four follow for each bucket: its mode, the nanoseconds that the cost takes to
-- come back, the tolerance, and a fourth. That is for undo the instant of the
-- spend, for hold its end, and otherwise the tolerance that a TAT of an earlier
-- generation is cut down to.
--
-- The reply is the time, 1 or 0 for all of them, and for each bucket its TAT,
-- the nanoseconds to wait and the end of its hold.
--
-- An instant needs 61 bits and a number has 53, so every instant and duration is
-- a pair of seconds and nanoseconds.
local billion = 1000000000
local largest = '9223372036854775807'

local function split(v)
  local n = #v
  if n <= 9 then return 0, tonumber(v, 10) end
  return tonumber(string.sub(v, 1, n - 9), 10), tonumber(string.sub(v, n - 8), 10)
end

local function join(s, n)
  if s == 0 then return string.format('%d', n) end
  return string.format('%d%09d', s, n)
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

local function number(v)
  return #v < 19 or #v == 19 and v <= largest
end

local given, op, generation = ARGV[1] ~= '', ARGV[2], ARGV[3]
local plain = generation == ''
local nows, nown, micros
if given then
  nows, nown = split(ARGV[1])
else
  local t = redis.call('TIME')
  nows, nown = tonumber(t[1], 10), tonumber(t[2], 10) * 1000
end
micros = join(nows, nown)
micros = #micros > 3 and string.sub(micros, 1, -4) or '0'

local clamps = {spend = true, check = true, refund = true}
local buckets, all = {}, true
for i = 1, #KEYS do
  local v = redis.pcall('GET', KEYS[i])
  if type(v) == 'table' then
    if string.sub(v.err or '', 1, 9) == 'WRONGTYPE' then
      return redis.error_reply('STINT TYPE ' .. string.format('%d', i))
    end
    return v
  end
  local b = {existed = v and true, mark = '0', hs = 0, hn = 0, ts = 0, tn = 0}
  if v then
    local tat, mark, hold = string.match(v, '^(%d+)$'), nil, nil
    if not tat and not plain then
      tat, mark = string.match(v, '^(%d+) (%d+)$')
      if not tat then tat, mark, hold = string.match(v, '^(%d+) (%d+) (%d+)$') end
    end
    if not tat or not number(tat) or mark and #mark > 16 or hold and not number(hold) then
      return redis.error_reply('STINT VALUE ' .. string.format('%d', i))
    end
    b.ts, b.tn = split(tat)
    if mark then b.mark = mark end
    if hold then b.hs, b.hn = split(hold) end
  end
  local a = 4 * i
  b.mode = ARGV[a]
  local cs, cn = split(ARGV[a + 1])
  local os, on = split(ARGV[a + 2])
  local fs, fn = split(ARGV[a + 3])
  local full = not less(nows, nown, b.ts, b.tn)
  if not plain and full then
    b.mark = micros
  elseif not plain and clamps[op] and (fs > 0 or fn > 0) and tonumber(b.mark, 10) < tonumber(generation, 10) then
    b.mark = generation
    local ms, mn = add(nows, nown, fs, fn)
    if less(ms, mn, b.ts, b.tn) then
      b.ts, b.tn, b.write = ms, mn, true
    end
  end
  b.ns, b.nn, b.ws, b.wn = b.ts, b.tn, 0, 0
  if op == 'spend' or op == 'check' then
    local ss, sn = b.ts, b.tn
    if full then ss, sn = nows, nown end
    ss, sn = add(ss, sn, cs, cn)
    local ms, mn = add(nows, nown, os, on)
    if less(ms, mn, ss, sn) then
      b.ws, b.wn = sub(ss, sn, ms, mn)
    else
      b.ns, b.nn = ss, sn
    end
    if less(nows, nown, b.hs, b.hn) then
      local es, en = sub(b.hs, b.hn, nows, nown)
      if less(b.ws, b.wn, es, en) then
        b.ns, b.nn, b.ws, b.wn = b.ts, b.tn, es, en
      end
    end
    b.denied = b.ws > 0 or b.wn > 0
    b.moves = not b.denied and b.mode ~= '1' and (cs > 0 or cn > 0)
    if b.denied and b.mode ~= '2' then all = false end
  elseif op == 'refund' or op == 'undo' then
    if op == 'undo' then -- less what has come back by itself
      local es, en = sub(nows, nown, fs, fn)
      if es < 0 then es, en = 0, 0 end
      if less(es, en, cs, cn) then cs, cn = sub(cs, cn, es, en) else cs, cn = 0, 0 end
    end
    if not full and (cs > 0 or cn > 0) then
      b.ns, b.nn = nows, nown
      local ls, ln = add(nows, nown, cs, cn)
      if less(ls, ln, b.ts, b.tn) then b.ns, b.nn = sub(b.ts, b.tn, cs, cn) end
      b.moves = true
    end
  elseif op == 'charge' then
    local ss, sn = b.ts, b.tn
    if full then ss, sn = nows, nown end
    ss, sn = add(ss, sn, cs, cn)
    local ms, mn = add(nows, nown, os, on)
    if less(ms, mn, ss, sn) then ss, sn = ms, mn end
    if less(b.ts, b.tn, ss, sn) then b.ns, b.nn, b.moves = ss, sn, true end
  elseif op == 'reset' then
    if not full then b.ns, b.nn = nows, nown end
    b.hs, b.hn, b.moves = 0, 0, true
  elseif op == 'hold' then
    b.hs, b.hn, b.moves = fs, fn, true
  else
    return redis.error_reply('STINT OP')
  end
  buckets[i] = b
end

local reply = {join(nows, nown), all and '1' or '0'}
for i, b in ipairs(buckets) do
  local moves = b.moves and all and op ~= 'check'
  if moves or b.write then
    local ts, tn = b.ts, b.tn
    if moves then ts, tn = b.ns, b.nn end
    local held = less(nows, nown, b.hs, b.hn)
    local es, en = ts, tn
    if held and less(es, en, b.hs, b.hn) then es, en = b.hs, b.hn end
    if less(nows, nown, es, en) then
      local v = join(ts, tn)
      if not plain then v = v .. ' ' .. b.mark end
      if held then v = v .. ' ' .. join(b.hs, b.hn) end
      if given then
        redis.call('SET', KEYS[i], v)
      else
        es, en = sub(es, en, nows, nown)
        redis.call('SET', KEYS[i], v, 'PX', string.format('%d', es * 1000 + math.ceil(en / 1000000) + 1))
      end
    elseif b.existed then
      redis.call('DEL', KEYS[i])
    end
  end
  local at = 3 * i
  reply[at] = join(b.ns, b.nn)
  reply[at + 1] = join(b.ws, b.wn)
  reply[at + 2] = less(nows, nown, b.hs, b.hn) and join(b.hs, b.hn) or ''
end
return reply
