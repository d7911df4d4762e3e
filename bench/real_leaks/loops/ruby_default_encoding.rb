require_relative "common"

run(4_000) { Encoding.default_internal = nil }
