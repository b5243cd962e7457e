-- Returns what report.lua has written for a policy: a list of each minute and its summary, in no order.
--
-- KEYS[1]  the policy's reports
-- ARGV[1]  how many minutes are kept, beside the current one

local oldest = math.floor(redis.call('TIME')[1] / 60) - ARGV[1]
local all, list = redis.call('HGETALL', KEYS[1]), {}
for i = 1, #all, 2 do
  if all[i] ~= 'seen' and tonumber(all[i]) >= oldest then
    list[#list + 1] = all[i]
    list[#list + 1] = all[i + 1]
  end
end
return list
