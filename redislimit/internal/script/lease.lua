-- The leases of redislimit: a machine takes tokens in advance, and gives unused
-- ones back. Go multiplies; this script adds, compares and divides by 8.
-- time.lua and bucket.lua stand before it.
--
-- KEYS are the keys of the buckets. After ARGV[2] come twelve arguments for each
-- bucket, all in nanoseconds. Tokens are given as the time in which they come
-- back.
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
-- to wait and the end of its hold. If the i-th key is not a bucket, the reply is
-- the error STINT KEY Ti or STINT KEY Vi, as in script.lua, and nothing is
-- written. If the server refuses a command, the error is that of writeAll.

-- eighth returns a duration ÷ 8, rounded down.
local function eighth(s, n)
  local e = math.floor(s / 8)
  return e, math.floor(((s - 8 * e) * billion + n) / 8)
end

local buckets, changed = {}, {}
for i = 1, #KEYS do
  local b, why = read(KEYS[i])
  if why == 'T' or why == 'V' then return redis.error_reply(format('STINT KEY %s%d', why, i)) end
  if why then return failed(why) end
  b.gs, b.gn = 0, 0
  local a = 12 * i - 9
  for j = a + 6, a + 9, 3 do
    local us, un = number(ARGV[j])
    local gs, gn = number(ARGV[j + 1])
    local ss, sn = number(ARGV[j + 2])
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
  local is, inn = number(ARGV[a])
  local os, on = number(ARGV[a + 1])
  local cs, cn = number(ARGV[a + 2])
  local full = not less(nows, nown, b.ts, b.tn)
  if not plain and full then
    b.mark = micros
  elseif not plain and (cs > 0 or cn > 0) and tonumber(b.mark, 10) < generation then
    b.mark = ARGV[2]
    local ms, mn = add(nows, nown, cs, cn)
    if less(ms, mn, b.ts, b.tn) then
      b.ts, b.tn, b.write = ms, mn, true
    end
  end
  if is > 0 or inn > 0 then
    local ss, sn = b.ts, b.tn
    if full then ss, sn = nows, nown end
    local ms, mn = add(nows, nown, os, on)
    local xs, xn = number(ARGV[a + 3])
    local ls, ln = add(ss, sn, xs, xn)
    if less(ms, mn, ls, ln) then b.ws, b.wn = sub(ls, ln, ms, mn) end
    if less(nows, nown, b.hs, b.hn) then
      local es, en = sub(b.hs, b.hn, nows, nown)
      if less(b.ws, b.wn, es, en) then b.ws, b.wn = es, en end
    end
    if b.ws == 0 and b.wn == 0 then
      local fs, fn = sub(ms, mn, ss, sn)
      local ns, nn = number(ARGV[a + 4])
      ns, nn = least(ns, nn, fs, fn)
      local qs, qn = number(ARGV[a + 5])
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
  if b.write then changed[#changed + 1] = b end
end

local reply = {join(nows, nown)}
for i, b in ipairs(buckets) do
  local held = less(nows, nown, b.hs, b.hn)
  local at = 4 * i - 2
  reply[at] = join(b.gs, b.gn)
  reply[at + 1] = join(b.ts, b.tn)
  reply[at + 2] = join(b.ws, b.wn)
  reply[at + 3] = held and join(b.hs, b.hn) or ''
end
return writeAll(changed) or reply
