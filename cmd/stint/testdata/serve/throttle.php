<?php
$stint = new Redis();
$stint->connect(getenv('STINT') ?: '/run/stint/resp.sock');
[$limited, $limit, $left, $retry] = $stint->rawCommand('CL.THROTTLE', 'user:1', 99, 100, 86400);
if ($limited) {
    header("Retry-After: $retry");
    http_response_code(429);
    exit("retry in {$retry}s\n");
}
echo "$left of $limit left\n";
