from memleak_android.host.cli import main

main()
