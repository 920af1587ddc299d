-- The leases of redislimit: a machine takes tokens in advance, and gives unused
-- ones back. Go multiplies; this script adds, compares and halves. Values,
-- instants and pairs are as in script.lua.
--
-- KEYS are the keys of the buckets. ARGV[1] is the time in Unix nanoseconds, or
-- empty for the server's time. ARGV[2] is the generation of the caller's limits,
-- or empty for plain values.
--
-- Twelve arguments follow for each bucket, all in nanoseconds. Tokens are given
-- as the time in which they come back.
--   T, the tolerance, the tolerance that a TAT of an earlier generation is cut
--     down to
--   what the first caller needs, what all callers need, what the machine wants
--   two grants that end, each with its unused tokens, all its tokens, its instant
--
-- First the grants that end give back their unused tokens, less what time has
-- brought back. If the bucket then has what the first caller needs, the grant is
--
--   max(min(all need, free), min(want, free ÷ 8)), in whole tokens
--
-- The reply is the time, and for each bucket the grant, its TAT, the nanoseconds
-- to wait and the end of its hold.
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

local function least(as, an, bs, bn)
  if less(as, an, bs, bn) then return as, an end
  return bs, bn
end

local function number(v)
  return #v < 19 or #v == 19 and v <= largest
end

-- eighth returns a duration ÷ 8, rounded down.
local function eighth(s, n)
  local e = math.floor(s / 8)
  return e, math.floor(((s - 8 * e) * billion + n) / 8)
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

local given, generation = ARGV[1] ~= '', ARGV[2]
local plain = generation == ''
local nows, nown
if given then
  nows, nown = split(ARGV[1])
else
  local t = redis.call('TIME')
  nows, nown = tonumber(t[1], 10), tonumber(t[2], 10) * 1000
end
local micros = join(nows, nown)
micros = #micros > 3 and string.sub(micros, 1, -4) or '0'

local buckets = {}
for i = 1, #KEYS do
  local v = redis.pcall('GET', KEYS[i])
  if type(v) == 'table' then
    if string.sub(v.err or '', 1, 9) == 'WRONGTYPE' then
      return redis.error_reply('STINT TYPE ' .. string.format('%d', i))
    end
    return v
  end
  local b = {existed = v and true, mark = '0', hs = 0, hn = 0, ts = 0, tn = 0, gs = 0, gn = 0, ws = 0, wn = 0}
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
  local a = 12 * i - 9
  for j = a + 6, a + 9, 3 do
    local us, un = split(ARGV[j])
    local gs, gn = split(ARGV[j + 1])
    local ss, sn = split(ARGV[j + 2])
    local es, en = 0, 0
    if less(ss, sn, nows, nown) then es, en = sub(nows, nown, ss, sn) end
    if less(es, en, gs, gn) then
      us, un = least(us, un, sub(gs, gn, es, en))
      if (us > 0 or un > 0) and less(nows, nown, b.ts, b.tn) then
        local fs, fn = add(nows, nown, us, un)
        if less(fs, fn, b.ts, b.tn) then b.ts, b.tn = sub(b.ts, b.tn, us, un) else b.ts, b.tn = nows, nown end
        b.write = true
      end
    end
  end
  local is, inn = split(ARGV[a])
  local os, on = split(ARGV[a + 1])
  local cs, cn = split(ARGV[a + 2])
  local full = not less(nows, nown, b.ts, b.tn)
  if not plain and full then
    b.mark = micros
  elseif not plain and (cs > 0 or cn > 0) and tonumber(b.mark, 10) < tonumber(generation, 10) then
    b.mark = generation
    local ms, mn = add(nows, nown, cs, cn)
    if less(ms, mn, b.ts, b.tn) then
      b.ts, b.tn, b.write = ms, mn, true
    end
  end
  if is > 0 or inn > 0 then
    local ss, sn = b.ts, b.tn
    if full then ss, sn = nows, nown end
    local ms, mn = add(nows, nown, os, on)
    local xs, xn = split(ARGV[a + 3])
    local ls, ln = add(ss, sn, xs, xn)
    if less(ms, mn, ls, ln) then b.ws, b.wn = sub(ls, ln, ms, mn) end
    if less(nows, nown, b.hs, b.hn) then
      local es, en = sub(b.hs, b.hn, nows, nown)
      if less(b.ws, b.wn, es, en) then b.ws, b.wn = es, en end
    end
    if b.ws == 0 and b.wn == 0 then
      local fs, fn = sub(ms, mn, ss, sn)
      local ns, nn = split(ARGV[a + 4])
      ns, nn = least(ns, nn, fs, fn)
      local qs, qn = split(ARGV[a + 5])
      qs, qn = least(qs, qn, eighth(fs, fn))
      if less(ns, nn, qs, qn) then ns, nn = qs, qn end
      b.gs, b.gn = whole(ns, nn, is, inn)
      if b.gs > 0 or b.gn > 0 then
        b.ts, b.tn = add(ss, sn, b.gs, b.gn)
        b.write = true
      end
    end
  end
  buckets[i] = b
end

local reply = {join(nows, nown)}
for i, b in ipairs(buckets) do
  local held = less(nows, nown, b.hs, b.hn)
  if b.write then
    local es, en = b.ts, b.tn
    if held and less(es, en, b.hs, b.hn) then es, en = b.hs, b.hn end
    if less(nows, nown, es, en) then
      local v = join(b.ts, b.tn)
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
  local at = 4 * i - 2
  reply[at] = join(b.gs, b.gn)
  reply[at + 1] = join(b.ts, b.tn)
  reply[at + 2] = join(b.ws, b.wn)
  reply[at + 3] = held and join(b.hs, b.hn) or ''
end
return reply
