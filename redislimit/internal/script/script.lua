-- The decisions of redislimit. Go multiplies; this script adds and compares.
-- time.lua, spend.lua and bucket.lua stand before it.
--
-- A call has groups of requests, which are decided in order. The requests of a
-- group are carried out all or none. KEYS has the key of each request's bucket.
--
-- ARGV[2 + i] is the i-th request: three letters and six doubles.
--   the operation: (s)pend, (c)heck, (r)efund, (u)ndo, rese(t), (h)old, (e)xtend a
--     hold, which never ends earlier then, or (p)art, which spends what the bucket has
--     of its cost in whole tokens
--   the mode: 0, 1 or 2, as in package stint
--   + if the group goes on with the next request, or -
--   the time that the cost takes to come back, as seconds and nanoseconds
--   the tolerance, likewise
--   an argument of the operation, likewise: for undo the instant of the spend,
--     for hold and extend the end, for part T, and otherwise the tolerance that a
--     TAT of an earlier generation is cut down to. Part cuts down to its tolerance,
--     unless its mode is 1
--
-- The reply is one line: the time, and for each group 1 or 0 for allowed, and
-- for each of its requests the TAT, the time to wait and the end of the hold. For
-- a part, the time to wait is the time that the taken tokens need to come back.
-- If the i-th key of a group is no string, the group's part is only Ti. If the
-- value of that key is not a bucket's, it is only Vi. No request of such a group
-- is carried out. If the server refuses a command, the error is that of writeAll.

local known, changed, changes = {}, {}, 0
local group, members, all, wrong = {}, 0, true, nil
for i = from, #KEYS do
  local op, mode, more, cs, cn, os, on, fs, fn = struct.unpack('>c1c1c1dddddd', ARGV[2 + i])
  local b, why = known[KEYS[i]], nil
  if not b then
    b, why = read(KEYS[i])
    if b then
      known[KEYS[i]] = b
    elseif why ~= 'T' and why ~= 'V' then
      return failed(why)
    else
      wrong = wrong or why .. format('%d', members + 1)
      b = {mark = '0', ts = 0, tn = 0, hs = 0, hn = 0}
    end
  end
  members = members + 1
  group[members] = b
  local ts, tn, mark = b.ts, b.tn, b.mark
  local full, moves = ts < nows or ts == nows and tn <= nown, false
  if full then
    mark = micros
  elseif not plain and (fs > 0 or fn > 0) and tonumber(mark, 10) < generation and
      (op == 's' or op == 'c' or op == 'r' or op == 'p' and mode == '0') then
    mark = ARGV[2]
    local ms, mn = add(nows, nown, fs, fn)
    if op == 'p' then ms, mn = add(nows, nown, os, on) end
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
  elseif op == 'p' then
    local ss, sn = ts, tn
    if full then ss, sn = nows, nown end
    local ms, mn = add(nows, nown, os, on)
    if less(ss, sn, ms, mn) and not less(nows, nown, b.hs, b.hn) then
      local ls, ln = sub(ms, mn, ss, sn)
      ls, ln = least(ls, ln, cs, cn)
      ws, wn = whole(ls, ln, fs, fn)
      ns, nn = add(ss, sn, ws, wn)
      moves = ws > 0 or wn > 0
    end
  elseif op == 't' then
    if not full then ns, nn = nows, nown end
    b.held, moves = {0, 0}, true
  elseif op == 'h' then
    b.held, moves = {fs, fn}, true
  elseif op == 'e' then
    if less(fs, fn, b.hs, b.hn) then fs, fn = b.hs, b.hn end
    b.held, moves = {fs, fn}, true
  else
    return failed('operation ' .. op)
  end
  b.moves, b.next, b.ns, b.nn, b.ws, b.wn = moves, mark, ns, nn, ws, wn
  if more == '-' then
    replies = replies + 1
    reply[replies] = wrong or all and '1' or '0'
    for j = 1, wrong and 0 or members do
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
    members, all, wrong = 0, true, nil
  end
end

return writeAll(changed) or table.concat(reply, ' ')
