-- Schedules a batch of jobs of one partition.
-- ARGV, from the third on, for each job: id, "in" or "at", microseconds, payload. One that is to come again has the distance of its
-- points after "in".
-- Returns a digit for each job: 1 where it was scheduled, 0 where its id was known already.
if is_repeated then return last_reply end
if is_late then return refuse() end

local first = tonumber(call('ZRANGE', due, 0, 0, 'WITHSCORES')[2]) or math.huge
local earliest = first
local answers, scores = {}, {}
for at = 3, #ARGV, 4 do
  local id = ARGV[at]
  if call('HSETNX', payload, id, ARGV[at + 3]) == 0 then
    answers[#answers + 1] = '0'
  else
    local micros = tonumber(ARGV[at + 2])
    local kind, every = match(ARGV[at + 1], '^(%a+) ?(%d*)$')
    if kind == 'in' then micros = now + micros end
    if every ~= '' then call('HSET', repeats, id, exact(micros) .. ' ' .. every) end
    scores[#scores + 1] = exact(micros)
    scores[#scores + 1] = id
    earliest = math.min(earliest, micros)
    answers[#answers + 1] = '1'
  end
end
if scores[1] then call('ZADD', due, unpack(scores)) end
local reply = table.concat(answers)
remember(reply)
-- Workers look again when there is another first one.
if earliest < first then hint() end
return reply
