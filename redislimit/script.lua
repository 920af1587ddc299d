-- The decisions of redislimit. Go multiplies; this script adds and compares.
--
-- A call has groups of requests, which are decided in order. The requests of a
-- group are carried out all or none. KEYS has the key of each request's bucket.
-- A value is "TAT", "TAT MARK" or "TAT MARK HOLD". TAT is the instant at which
-- the bucket is full, and HOLD is the end of its hold, both in Unix
-- nanoseconds. MARK is the newest generation that used the bucket, or the
-- instant at which it was last found full, in Unix microseconds.
--
-- ARGV[1] is the time in Unix nanoseconds, or empty for the server's time.
-- ARGV[2] is the generation of the callers' limits, or empty for plain values.
-- ARGV[2 + i] is the i-th request: three letters and six doubles.
--   the operation: (s)pend, (c)heck, (r)efund, (u)ndo, rese(t), (h)old
--     or (d)ebt, which takes what the bucket has, up to its cost, and admits nothing
--   the mode: 0, 1 or 2, as in package stint
--   + if the group goes on with the next request, or -
--   the time that the cost takes to come back, as seconds and nanoseconds
--   the tolerance, likewise
--   a fourth, likewise: for undo the instant of the spend, for hold its end, and
--     otherwise the tolerance that a TAT of an earlier generation is cut down to
--
-- The reply is one line: the time, and for each group 1 or 0 for allowed, and
-- for each of its requests the TAT, the time to wait and the end of the hold.
-- If the i-th key of a group is no string, the group's part is only Ti. If the
-- value of that key is not a bucket's, it is only Vi. No request of such a group
-- is carried out. If the server refuses a command, the error begins with STINT
-- NONE if nothing was written, and otherwise with STINT SOME.
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

-- open reads a bucket. If its key is not one, it returns what to reply. If a
-- request moves its bucket, ns, nn, next and held are the new state.
local function open(key)
  local v = redis.pcall('GET', key)
  local ts, tn, mark, hs, hn = 0, 0, '0', 0, 0
  if type(v) == 'table' then
    if match(v.err, '^WRONGTYPE') then return nil, 'T' end
    return nil, 'STINT NONE ' .. v.err
  elseif v then
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

local known, changed, changes = {}, {}, 0
local reply, replies = {format('%d %d', nows, nown)}, 1
local group, members, all, failed = {}, 0, true, nil
for i = 1, #KEYS do
  local op, mode, more, cs, cn, os, on, fs, fn = struct.unpack('>c1c1c1dddddd', ARGV[2 + i])
  local b, why = known[KEYS[i]], nil
  if not b then
    b, why = open(KEYS[i])
    if b then
      known[KEYS[i]] = b
    elseif why ~= 'T' and why ~= 'V' then
      return redis.error_reply(why)
    else
      failed = failed or why .. format('%d', members + 1)
      b = {mark = '0', ts = 0, tn = 0, hs = 0, hn = 0}
    end
  end
  members = members + 1
  group[members] = b
  local ts, tn, mark = b.ts, b.tn, b.mark
  local full, moves = ts < nows or ts == nows and tn <= nown, false
  if full then
    mark = micros
  elseif not plain and (fs > 0 or fn > 0) and (op == 's' or op == 'c' or op == 'r') and
      tonumber(mark, 10) < generation then
    mark = ARGV[2]
    local ms, mn = add(nows, nown, fs, fn)
    if ms < ts or ms == ts and mn < tn then -- cut down, whatever becomes of the request
      ts, tn = ms, mn
      b.ts, b.tn, b.mark = ts, tn, mark
      if not b.changed then
        changes = changes + 1
        changed[changes], b.changed = b, true
      end
    end
  end
  local ns, nn, ws, wn = ts, tn, 0, 0
  if op == 's' or op == 'c' then
    local ss, sn = ts + cs, tn + cn
    if full then ss, sn = nows + cs, nown + cn end
    if sn >= billion then ss, sn = ss + 1, sn - billion end
    local ms, mn = nows + os, nown + on
    if mn >= billion then ms, mn = ms + 1, mn - billion end
    if ms < ss or ms == ss and mn < sn then
      ws, wn = sub(ss, sn, ms, mn)
    else
      ns, nn = ss, sn
    end
    if nows < b.hs or nows == b.hs and nown < b.hn then
      local es, en = sub(b.hs, b.hn, nows, nown)
      if ws < es or ws == es and wn < en then ns, nn, ws, wn = ts, tn, es, en end
    end
    if ws > 0 or wn > 0 then
      all = all and mode == '2'
    else
      moves = op == 's' and mode ~= '1' and (cs > 0 or cn > 0)
    end
  elseif op == 'r' or op == 'u' then
    if op == 'u' then -- less what has come back by itself
      local es, en = sub(nows, nown, fs, fn)
      if es < 0 then es, en = 0, 0 end
      if es < cs or es == cs and en < cn then cs, cn = sub(cs, cn, es, en) else cs, cn = 0, 0 end
    end
    if not full and (cs > 0 or cn > 0) then
      ns, nn, moves = nows, nown, true
      local ls, ln = add(nows, nown, cs, cn)
      if ls < ts or ls == ts and ln < tn then ns, nn = sub(ts, tn, cs, cn) end
    end
  elseif op == 'd' then
    local ss, sn = add(ts, tn, cs, cn)
    if full then ss, sn = add(nows, nown, cs, cn) end
    local ms, mn = add(nows, nown, os, on)
    if ms < ss or ms == ss and mn < sn then ss, sn = ms, mn end
    if ts < ss or ts == ss and tn < sn then ns, nn, moves = ss, sn, true end
  elseif op == 't' then
    if not full then ns, nn = nows, nown end
    b.held, moves = {0, 0}, true
  elseif op == 'h' then
    b.held, moves = {fs, fn}, true
  else
    return redis.error_reply('STINT NONE operation ' .. op)
  end
  b.moves, b.next, b.ns, b.nn, b.ws, b.wn = moves, mark, ns, nn, ws, wn
  if more == '-' then
    replies = replies + 1
    reply[replies] = failed or all and '1' or '0'
    for j = 1, failed and 0 or members do
      b = group[j]
      if b.moves and all then
        b.ts, b.tn, b.mark = b.ns, b.nn, b.next
        if b.held then b.hs, b.hn, b.held = b.held[1], b.held[2], nil end
        if not b.changed then
          changes = changes + 1
          changed[changes], b.changed = b, true
        end
      end
      local hs, hn = b.hs, b.hn
      if hs < nows or hs == nows and hn <= nown then hs, hn = 0, 0 end
      replies = replies + 1
      reply[replies] = format('%d %d %d %d %d %d', b.ns, b.nn, b.ws, b.wn, hs, hn)
    end
    members, all, failed = 0, true, nil
  end
end

local wrote = false
for i = 1, changes do
  local b = changed[i]
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
  if type(result) == 'table' and result.err then
    return redis.error_reply((wrote and 'STINT SOME ' or 'STINT NONE ') .. result.err)
  end
  wrote = wrote or result and true
end
return table.concat(reply, ' ')
