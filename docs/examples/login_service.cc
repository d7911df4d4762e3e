/* A login service whose memory grows; docs/use/tutorial.md finds out why. SPDX-License-Identifier: Apache-2.0 */
#include <chrono>
#include <deque>
#include <string>
#include <thread>
#include <unordered_map>

struct Request {
	std::string user, password;
};

struct Session {
	std::string user;
	std::string reply;
};

static std::unordered_map<int, Session> sessions;
static std::deque<std::string> recent_users; /* the last 100: full after half a second */

static int open_session(const Request &request)
{
	static int last_id;
	Session &session = sessions[++last_id];
	session.user = request.user;
	session.reply.reserve(2000);
	return last_id;
}

static bool log_in(const Request &request)
{
	int id = open_session(request);
	if (request.password != "secret of " + request.user)
		return false;
	sessions[id].reply += "welcome";
	sessions.erase(id);
	return true;
}

/* 200 requests a second; a quarter of the users have forgotten their password. */
static Request next_request(int number)
{
	static const auto start = std::chrono::steady_clock::now();
	std::this_thread::sleep_until(start + number * std::chrono::milliseconds(5));
	std::string user = "customer number " + std::to_string(number);
	return {user, number % 4 ? "secret of " + user : "forgotten"};
}

int main()
{
	for (int number = 1;; number++) {
		Request request = next_request(number);
		log_in(request);
		recent_users.push_back(request.user);
		if (recent_users.size() > 100)
			recent_users.pop_front();
	}
}
