require "redis"

stint = Redis.new(path: ENV.fetch("STINT", "/run/stint/resp.sock"))

limited, limit, left, retry_after = stint.call("CL.THROTTLE", "user:1", 99, 100, 86400)
if limited == 1
  puts "retry in #{retry_after}s"
else
  puts "#{left} of #{limit} left"
end
