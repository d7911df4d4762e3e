use FindBin; require "$FindBin::Bin/common.pl";
no warnings;

my $answers = sub { return 'a text of fifty characters and a few more than that' };
run(sub { my $matches = 'a' ~~ $answers }, 2000);
