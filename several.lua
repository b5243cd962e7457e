-- A decision on several token buckets and calendar periods at once, in line, as nearly every call on several limits is one.
-- What is not plain, such as a block, is left to decide.lua, which has the contract of KEYS and ARGV. It comes first in the
-- scripts of those kinds.
--
-- It decides on slots too, and on a client that is not banned, where they come with the limits: see guards.lua.
--
-- Reply: for each key one integer, the level of a bucket or the tokens taken of a calendar period. The caller knows the rest. Then
-- what guards.lua replies of a ban and of slots.

if #KEYS > 1 and ARGV[1] == 'take' then
  local KEYS, ARGV = KEYS, ARGV
  local call, try, floor, ceil, format, match = redis.call, redis.pcall, math.floor, math.ceil, string.format, string.match
  local n, charges, plain = ARGV[2] + 0, ARGV[3] + 0, true
  local values, levels = {0, 0, 0}, {0, 0, 0}
  local k, at, ban, used = #KEYS, nil, nil, nil
  if guarded then
    k = ARGV[#ARGV] + 0
    at = 3 * k + 3
    plain = charges == 1
    if ARGV[at + 1] ~= 'slots' then
      plain, ban, at = plain and not try('GET', KEYS[k + 1]), true, at + 3
    end
    if plain and #ARGV - at == 7 then -- slots, of which no other process has one
      used = ARGV[at + 5] + 0
      plain = used < ARGV[at + 2] + 0
      local value = try('GET', KEYS[#KEYS])
      if value then
        local process, known, held, later = match(value, '^(%S+) (%d+) (%d+) (%d*),?$')
        plain = plain and process == ARGV[at + 3] and ARGV[at + 4] - known >= 0
        if plain and ARGV[at + 4] == known then
          plain = held - used >= 0 and (later == '' or later .. ',' == ARGV[at + 6]) -- or it is repeated
        elseif plain then
          plain = later == '' or ARGV[at + 4] - later >= 0 -- it is settled
        end
      end
    end
  end
  for i = 1, plain and k or 0 do
    local at = 3 * i
    local drain, calendar, level, charge = ARGV[at + 1], ARGV[at + 2] == '0', 0, n
    local value = try('GET', KEYS[i])
    if not calendar then charge = n * ARGV[at + 2] end
    if value then
      level = tonumber(value)
      if not level or level < 0 then
        plain = false
        break
      end
      if not calendar then
        local ttl = call('PTTL', KEYS[i])
        if ttl <= 0 then
          plain = false
          break
        end
        drain = drain + 0
        if level < drain then -- else it is another limit's
          level = ttl * drain - level
        else
          level = ttl * drain
        end
      end
      if level > 9007199254740991 then -- 2^53 - 1
        plain = false
        break
      end
    end
    local room = ARGV[at + 3] - level
    if charges * charge > room then charges = floor(room / charge) end
    values[i], levels[i] = value, level
  end

  if plain and (charges > 0 or not guarded) then
    if charges > 0 then
      local charged = false -- by a command that fails where memory is full: then nothing is
      local tokens = charges * n
      for i = 1, k do
        local at = 3 * i
        if ARGV[at + 2] == '0' then
          if values[i] then
            call('INCRBY', KEYS[i], format('%d', tokens))
          else -- an hour of grace: see fixed_window.lua
            call('SET', KEYS[i], format('%d', tokens), 'PX', format('%d', ARGV[at + 1] + 3600000))
          end
          charged = true
        end
      end
      for i = 1, k do
        local at = 3 * i
        if ARGV[at + 2] ~= '0' then
          local drain, after = ARGV[at + 1] + 0, levels[i] + tokens * ARGV[at + 2]
          local ttl = ceil(after / drain)
          local rest = ttl * drain - after
          if charged and rest == 0 and values[i] == '0' then
            call('PEXPIRE', KEYS[i], format('%d', ttl))
          else
            call('SET', KEYS[i], format('%d', rest), 'PX', format('%d', ttl))
            charged = true
          end
        end
      end
    end
    if k < 3 then levels[3] = nil end
    if k < 2 then levels[2] = nil end
    if ban then levels[k + 1], levels[k + 2] = 0, 0 end
    if used then
      call('SET', KEYS[#KEYS], ARGV[at + 3] .. ' ' .. ARGV[at + 4] .. ' ' .. ARGV[at + 5] .. ' ' .. ARGV[at + 6], 'PX', '10000')
      levels[#levels + 1] = used
    end
    return levels
  end
end

