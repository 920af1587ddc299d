import os
import redis

stint = redis.Redis(unix_socket_path=os.environ.get("STINT", "/run/stint/resp.sock"))

limited, limit, left, retry, reset = stint.execute_command("CL.THROTTLE", "user:1", 99, 100, 86400)
if limited:
    print(f"retry in {retry}s")
else:
    print(f"{left} of {limit} left")
