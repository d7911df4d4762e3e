const { compressSync } = require("lz4-napi");
const { run } = require("./common.js");

const text = Buffer.from("text ".repeat(100));
run(() => compressSync(text), 10000);
