// Keeps a compiler busy with templates, deeply: what its stacks are sampled from.
#include <algorithm>
#include <functional>
#include <future>
#include <iostream>
#include <map>
#include <memory>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#ifndef DEPTH
#define DEPTH 60
#endif

template <int N> struct Node {
	std::map<int, std::vector<std::string>> words;
	std::function<int(int)> count;

	int run(int x)
	{
		words[x].push_back(std::to_string(N));
		std::sort(words[x].begin(), words[x].end());
		count = [this](int y) { return static_cast<int>(words[y].size()) + N; };
		return count(x) + Node<N - 1>().run(x + 1);
	}
};

template <> struct Node<0> {
	int run(int x) { return x; }
};

int main(int argc, char **argv)
{
	std::regex pattern("a(b|c)*d+");
	std::smatch match;
	std::string text(argv[0]);
	auto found = std::async([&] { return std::regex_search(text, match, pattern); });
	std::ostringstream out;

	out << found.get() << Node<DEPTH>().run(argc);
	std::cout << out.str();
}
