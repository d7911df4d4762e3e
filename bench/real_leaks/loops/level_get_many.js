const fs = require("fs");
const os = require("os");
const path = require("path");
const { run } = require("./common.js");

const installed = fs.readdirSync(process.env.NODE_PATH);
const level = require(["leveldown", "rocksdb", "classic-level"].find((name) => installed.includes(name)));
const folder = fs.mkdtempSync(path.join(os.tmpdir(), "level-"));
const store = level.ClassicLevel ? new level.ClassicLevel(folder) : level(folder);
const keys = Array.from({ length: 100 }, (_, i) => `key ${10 + i}`);
process.on("exit", () => fs.rmSync(folder, { recursive: true }));
store.open((error) => {
  if (error) throw error;
  run(() => store.getMany(keys, () => {}), 200);
});
