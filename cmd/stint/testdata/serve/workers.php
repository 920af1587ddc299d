<?php // One worker process, as workers.py.
$stint = new Redis();
$stint->connect(getenv('STINT'));
fgets(STDIN);
$admitted = 0;
for ($i = 0; $i < 400; $i++) {
    $admitted += 1 - $stint->rawCommand('CL.THROTTLE', 'shared', 999, 1, 86400)[0];
}
echo "$admitted\n";
