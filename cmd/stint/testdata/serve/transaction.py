import os
import redis

stint = redis.Redis(unix_socket_path=os.environ["STINT"])

with stint.pipeline() as together:  # MULTI and EXEC
    together.execute_command("CL.THROTTLE", "user:1", 0, 1, 86400)
    together.execute_command("CL.THROTTLE", "user:1", 0, "x", 86400)
    together.execute_command("CL.THROTTLE", "user:1", 0, 1, 86400)
    first, wrong, second = together.execute(raise_on_error=False)
assert first[0] == 0 and second[0] == 1 and isinstance(wrong, redis.ResponseError), (first, wrong, second)
denied, limit, left, retry, reset = stint.execute_command("GCRA", "user:1", 1, 1, 86400.5, "TOKENS", 0)
assert (denied, limit) == (0, 2) and float(retry) == -1 and 0 < float(reset) <= 86400, (denied, limit, retry, reset)
