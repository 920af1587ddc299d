# One worker process: it throttles until it is told to end, and prints how often
# it was admitted.
import os
import sys
import redis

stint = redis.Redis(unix_socket_path=os.environ["STINT"])
sys.stdin.readline()  # all begin together
print(sum(stint.execute_command("CL.THROTTLE", "shared", 999, 1, 86400)[0] == 0 for _ in range(400)))
