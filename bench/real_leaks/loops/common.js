// The loop of all Node cases: run(step, perS). SECONDS, UNTIL, READY and TRUTH are as in common.py.
const fs = require("fs");
const rss = () => Number(fs.readFileSync("/proc/self/statm", "utf8").split(" ")[1]) * 4096;

exports.run = (step, perS) => {
  const seconds = Number(process.env.SECONDS || 12);
  const begin = Date.now();
  let steps = 0;
  let early = null;
  if (process.env.READY) fs.closeSync(fs.openSync(process.env.READY, "w"));
  const tick = () => {
    for (let i = 0; i < Math.max(1, perS / 20); i++, steps++) step();
    const now = (Date.now() - begin) / 1000;
    if (!early && now > seconds / 3) early = { now, rss: rss(), steps };
    if (now <= seconds || !fs.existsSync(process.env.UNTIL || "/")) return setTimeout(tick, Math.max(0, (steps / perS - now) * 1000));
    const [took, rise, done] = [now - early.now, rss() - early.rss, steps - early.steps];
    const truth = { rss_per_s: rise / took, steps_per_s: done / took, rss_a_step: rise / done };
    if (process.env.TRUTH) fs.writeFileSync(process.env.TRUTH, JSON.stringify(truth));
    else console.log(truth);
  };
  tick();
};
