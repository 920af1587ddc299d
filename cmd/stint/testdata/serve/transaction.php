<?php
$stint = new Redis();
$stint->connect(getenv('STINT'));
[$first, $wrong, $second] = $stint->multi()
    ->rawCommand('CL.THROTTLE', 'user:1', 0, 1, 86400)
    ->rawCommand('GCRA', 'user:1', 0, 'x', 86400)
    ->rawCommand('CL.THROTTLE', 'user:1', 0, 1, 86400)
    ->exec();
if ($first[0] !== 0 || $wrong !== false || $second[0] !== 1) {
    exit(1);
}
