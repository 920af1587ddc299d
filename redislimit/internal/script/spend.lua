-- Most calls have only spends of one bucket each, and all of them are allowed.
-- This part decides such spends as script.lua would, and writes them at once. It
-- stands before bucket.lua, because a call that ends here saves the time that
-- making the functions there takes. The first request that is anything else, and
-- all after it, are left to script.lua, which says what KEYS and ARGV are.
local reply, replies, from = {format('%d %d', nows, nown)}, 1, 1
for i = 1, plain and 0 or #KEYS do
  local op, mode, more, cs, cn, os, on = struct.unpack('>c1c1c1dddd', ARGV[2 + i])
  if op ~= 's' or mode == '1' or more == '+' or cs == 0 and cn == 0 then break end
  local v = redis.pcall('GET', KEYS[i])
  if type(v) == 'table' then break end -- an error
  local ss, sn, mark = nows, nown, nil
  if v then
    local ts, tn, m = match(v, '^(%d%d%d%d%d%d%d%d%d%d)(%d%d%d%d%d%d%d%d%d) (%d+)$')
    if not ts or ts > '9223372035' or #m > 16 then break end
    ts, tn = tonumber(ts, 10), tonumber(tn, 10)
    if nows < ts or nows == ts and nown < tn then
      if tonumber(m, 10) < generation then break end -- it may be cut down
      ss, sn, mark = ts, tn, m
    end
  end
  local ms, mn = nows + os, nown + on
  if mn >= billion then ms, mn = ms + 1, mn - billion end
  ss, sn = ss + cs, sn + cn
  if sn >= billion then ss, sn = ss + 1, sn - billion end
  if ss == 0 or ms < ss or ms == ss and mn < sn then break end -- denied
  v = format('%d%09d %s', ss, sn, mark or format('%d', nows * 1000000 + (nown - nown % 1000) / 1000))
  if given then
    v = redis.pcall('SET', KEYS[i], v)
  else
    local left = (ss - nows) * 1000 + math.ceil((sn - nown) / 1000000)
    v = redis.pcall('SET', KEYS[i], v, 'PX', format('%d', left + 1))
  end
  if v.err then return redis.error_reply((wrote and 'STINT SOME ' or 'STINT NONE ') .. v.err) end
  replies, from, wrote = replies + 1, i + 1, true
  reply[replies] = format('1 %d %d 0 0 0 0', ss, sn)
end
if from > #KEYS then return table.concat(reply, ' ') end
