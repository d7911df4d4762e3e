require_relative "common"

run(4_000) { ObjectSpace::WeakMap.new }
