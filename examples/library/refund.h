// The agent of this example, for its program and for its test.
#pragma once

#include <aetheris/aetheris.h>

#include <vector>

// A refund: reads the order, asks for approval above 100, pays back, and sends a mail.
// {"order": ID} -> {"payment": ID}
aetheris::Agent refund_agent();
// What it calls, on the shop's files.
std::vector<aetheris::Tool> shop_tools();
