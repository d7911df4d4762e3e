const { crc32c } = require("@node-rs/crc32");
const { run } = require("./common.js");

const short = Buffer.alloc(500);
run(() => crc32c(short), 10000);
