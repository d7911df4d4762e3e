"""The program's help on one screen; `--help-all` lists every option."""

OVERVIEW = """\
Find native memory leaks: what grows, what is still held, and which code allocated it.

  memleak-android -- ./server --port 80        run a command and watch it
  memleak-android --pid 4711                   watch a running process until Ctrl-C
  memleak-android --package com.example.app    watch an app on a connected device

What to watch    -- CMD · --pid N · -p/--package APP [--launch] [-s ID|-d|-e] · --follow · --all · --kernel
How long         --duration 60 · --scenario CMD --repeat N
While it runs    --live, the whole terminal · --interval 5, the largest stacks every 5 s
The report       -T N · --sort growth|size|count|peak|churn · -v, whole stacks · --symbols DIR · --reachability
Save it          -o DIR or -o x.html|json|pb.gz|speedscope.json|folded|sarif|junit.xml|memleak
Fail a CI job    --fail-on-leak 1MiB · --fail-on-growth 100K/min · --baseline FILE · --suppressions FILE
Cost less        --sample-bytes 64K · --stack-bytes 8K

Then             report FILE, any format of a recording · diff OLD NEW, what is new, grown, gone
                 doctor, what works here · demo, a program with planted leaks
                 record · snoop · mark · devices · fleet · unwind · sdk    (memleak-android VERB --help)

Exit status      the command's own, or 23 a limit is exceeded, 6 incomplete, 5 cannot measure here, 2 usage
                 memleak-android --help-all lists every option
"""
