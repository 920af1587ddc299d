-- Counts responses by status, and says whether those admitted are 100 a second after a burst of 100.
local thread
function setup(t) thread = t end

function init() ok, denied, other = 0, 0, 0 end

function response(status)
  if status == 200 then ok = ok + 1 elseif status == 429 then denied = denied + 1 else other = other + 1 end
end

function done(summary)
  local ok, denied, other = thread:get("ok"), thread:get("denied"), thread:get("other")
  local seconds = summary.duration / 1e6
  local rate = (ok - 100) / seconds
  print(string.format("%d admitted in %.3f s: 100 at once, and %.2f per second; %d times 429; %d of another status",
    ok, seconds, rate, denied, other))
  if math.abs(rate - 100) > 1 or other > 0 then os.exit(1) end
end
