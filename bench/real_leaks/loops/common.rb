# The loop of all Ruby cases: run(per_s) { a step }. SECONDS, UNTIL, READY and TRUTH are as in common.py.
def rss = File.read("/proc/self/statm").split[1].to_i * 4096
def monotonic = Process.clock_gettime(Process::CLOCK_MONOTONIC)

def run(per_s)
  seconds, start, steps, early = (ENV["SECONDS"] || 12).to_f, monotonic, 0, nil
  File.write(ENV["READY"], "") if ENV["READY"]
  loop do
    [per_s / 20, 1].max.times { yield; steps += 1 }
    now = monotonic - start
    early ||= [now, rss, steps] if now > seconds / 3
    if now > seconds && File.exist?(ENV["UNTIL"] || "/")
      took, rise, done = now - early[0], rss - early[1], (steps - early[2]).to_f
      truth = %({"rss_per_s": #{rise / took}, "steps_per_s": #{done / took}, "rss_a_step": #{rise / done}})
      return ENV["TRUTH"] ? File.write(ENV["TRUTH"], truth) : puts(truth)
    end
    sleep(steps.to_f / per_s - now) if steps.to_f / per_s > now
  end
end
