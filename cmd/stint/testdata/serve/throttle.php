<?php
$stint = new Redis();
$stint->connect(getenv('STINT') ?: '/run/stint/resp.sock', 0, 1.0);
$reply = $stint->rawCommand('CL.THROTTLE', 'user:1', 99, 100, 86400);
if (!is_array($reply)) { // an error reply may be false: fail closed
    http_response_code(503);
    exit($stint->getLastError() . "\n");
}
[$limited, $limit, $left, $retry] = $reply;
if ($limited) {
    header("Retry-After: $retry");
    http_response_code(429);
    exit("retry in {$retry}s\n");
}
echo "$left of $limit left\n";
