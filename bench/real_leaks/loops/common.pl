# The loop of all Perl cases: run(step, per_s). SECONDS, UNTIL, READY and TRUTH are as in common.py.
use strict;
use warnings;
use Time::HiRes qw(sleep time);

sub rss {
    open my $statm, '<', '/proc/self/statm' or die;
    return (split ' ', <$statm>)[1] * 4096;
}

sub run {
    my ($step, $per_s) = @_;
    my ($seconds, $begin, $steps, $now, @early) = ($ENV{SECONDS} // 12, time, 0);
    if ($ENV{READY}) { open my $ready, '>', $ENV{READY} or die }
    do {
        for (1 .. $per_s / 20 || 1) { $step->(); $steps++ }
        $now = time - $begin;
        @early = ($now, rss(), $steps) if !@early && $now > $seconds / 3;
        sleep($steps / $per_s - $now) if $steps / $per_s > $now;
    } while $now <= $seconds || !-e ($ENV{UNTIL} // '/');
    my ($took, $rise, $done) = ($now - $early[0], rss() - $early[1], $steps - $early[2]);
    my $truth = sprintf '{"rss_per_s": %f, "steps_per_s": %f, "rss_a_step": %f}', $rise / $took, $done / $took, $rise / $done;
    open my $out, '>', $ENV{TRUTH} // '/dev/stdout' or die;
    print $out "$truth\n";
}

1;
