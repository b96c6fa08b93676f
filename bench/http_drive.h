// drive: sends many requests to a server over persistent connections and measures the response
// times.
#pragma once

#include <string_view>
#include <vector>

namespace ae::bench {

// ADDRESS PATH BODY CONNECTIONS REQUESTS FIRST RATE: sends REQUESTS times POST PATH with BODY;
// `{n}` in either is the number of the request, from FIRST. RATE is requests per second, evenly
// spaced, each measured from its due time; 0 = as fast as responses arrive. Prints the row `drive`;
// returns 1 if a response is missing or not 2xx.
int drive(const std::vector<std::string_view>& args);

}  // namespace ae::bench
