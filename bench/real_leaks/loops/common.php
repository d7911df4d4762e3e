<?php
/* The loop of all PHP cases: run(step, per_s). SECONDS, UNTIL, READY and TRUTH are as in common.py. */
ini_set("memory_limit", "-1");

function rss(): int
{
    return explode(" ", file_get_contents("/proc/self/statm"))[1] * 4096;
}

function run(callable $step, int $per_s): void
{
    [$seconds, $begin, $steps, $early] = [(float) (getenv("SECONDS") ?: 12), microtime(true), 0, null];
    if (getenv("READY")) touch(getenv("READY"));
    do {
        for ($i = 0; $i < max(1, $per_s / 20); $i++, $steps++) $step();
        $now = microtime(true) - $begin;
        if (!$early && $now > $seconds / 3) $early = [$now, rss(), $steps];
        if ($steps / $per_s > $now) usleep((int) (($steps / $per_s - $now) * 1e6));
        clearstatcache();
    } while ($now <= $seconds || !file_exists(getenv("UNTIL") ?: "/"));
    [$took, $rise, $done] = [$now - $early[0], rss() - $early[1], $steps - $early[2]];
    $truth = ["rss_per_s" => $rise / $took, "steps_per_s" => $done / $took, "rss_a_step" => $rise / $done];
    file_put_contents(getenv("TRUTH") ?: "php://stdout", json_encode($truth) . "\n");
}
