# Throttles before and after a restart of the server, with one client.
import os
import sys
import redis

stint = redis.Redis(unix_socket_path=os.environ["STINT"])
print(stint.execute_command("CL.THROTTLE", "user:1", 99, 100, 86400)[2], flush=True)
sys.stdin.readline()
while True:
    try:
        print(stint.execute_command("CL.THROTTLE", "user:1", 99, 100, 86400)[2], flush=True)
        break
    except redis.exceptions.ConnectionError:
        pass
