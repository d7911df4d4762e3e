const { cut } = require("@node-rs/jieba");
const { run } = require("./common.js");

const text = Buffer.from("word");
run(() => cut(text), 5000);
