// Drive: many requests to a server over connections that are kept, and how long their answers take.
#pragma once

#include <string_view>
#include <vector>

namespace ae::bench {

// ADDRESS PATH BODY CONNECTIONS REQUESTS FIRST RATE: POSTs BODY to PATH, so often; `{n}` in either is the number of the
// request, from FIRST. RATE is how many a second, spread evenly, each measured from when it was due; 0 = as many as are
// answered. Prints the row `drive`; ends with 1 when an answer was none or not 2xx.
int drive(const std::vector<std::string_view>& words);

}  // namespace ae::bench
