require_relative "common"

word = "ab".encode("UTF-16LE")
run(50) { word.grapheme_clusters }
